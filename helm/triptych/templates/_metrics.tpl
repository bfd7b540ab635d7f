{{/* The load query of KEDA: running and waiting of one stage of this release. */}}
{{- define "triptych.loadQuery" -}}
{{- $match := printf "namespace=%q,pod=~%q" .root.Release.Namespace (printf "%s-%s-.*" (include "triptych.fullname" .root) .component.name) -}}
{{- if eq .component.kind "worker" -}}
sum(triptych_worker_running{ {{- $match -}} }) + sum(triptych_worker_waiting{ {{- $match -}} })
{{- else if eq .component.kind "render" -}}
sum(triptych_render_running{ {{- $match -}} })
{{- else -}}
sum(triptych_coordinator_running{ {{- $match -}} })
{{- end -}}
{{- end -}}
