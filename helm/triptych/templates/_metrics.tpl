{{/* PromQL: what selects our metrics, and the load that KEDA scales by. */}}

{{/* Labels that a scrape of this release carries, whatever made the scrape configuration. */}}
{{- define "triptych.podMatcher" -}}
{{- printf "namespace=%q,pod=~%q" .root.Release.Namespace (printf "%s-%s-.*" (include "triptych.fullname" .root) .name) -}}
{{- end -}}

{{/* Running and waiting of one component. */}}
{{- define "triptych.loadQuery" -}}
{{- $match := include "triptych.podMatcher" (dict "root" .root "name" .component.name) -}}
{{- $names := list "triptych_worker_running_requests" "triptych_worker_waiting_requests" "triptych_worker_encoder_waiting_items" -}}
{{- if eq .component.kind "render" -}}{{- $names = list "triptych_render_running" -}}{{- end -}}
{{- if eq .component.kind "coordinator" -}}{{- $names = list "triptych_requests_running" -}}{{- end -}}
{{- range $index, $name := $names -}}
{{- if $index }} + {{ end -}}
sum({{ $name }}{ {{- $match -}} })
{{- end -}}
{{- end -}}
