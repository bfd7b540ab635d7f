{{/* What the servers of mode standalone are told: arguments for what differs from pod to pod, a file for the rest. */}}

{{/* Arguments after `triptych <kind>`, as a JSON list. */}}
{{- define "triptych.args" -}}
{{- $v := .root.Values -}}
{{- $c := .component -}}
{{- $args := list $v.model -}}
{{- if eq $c.kind "worker" -}}{{- $args = concat $args (list "--role" $c.role) -}}{{- end -}}
{{- $args = concat $args (list "--config" "/etc/triptych/config.yaml") -}}
{{- if eq $c.kind "coordinator" -}}
{{- $args = concat $args (list "--host" $v.coordinator.listenAddress "--port" (int64 $v.coordinator.port) "--membership" "kubernetes" "--kubernetes-namespace" .root.Release.Namespace "--kubernetes-selector" (printf "app.kubernetes.io/instance=%s,triptych/discovery=replicas" .root.Release.Name)) -}}
{{- else -}}
{{- $args = concat $args (list "--host" "$(POD_IP)" "--port" (int64 $v.ports.http) "--grpc-port" (int64 $v.ports.grpc)) -}}
{{- end -}}
{{- with $v.modelRevision -}}{{- $args = concat $args (list "--revision" .) -}}{{- end -}}
{{- $args = concat $args (list "--drain" (int64 $v.drain.streamSeconds) "--log-level" $v.telemetry.logLevel) -}}
{{- concat $args $c.values.extraArgs | toJson -}}
{{- end -}}

{{/* The file of a component, as JSON: RenderConfig, WorkerConfig or CoordinatorConfig. */}}
{{- define "triptych.serverConfig" -}}
{{- $v := .root.Values -}}
{{- $c := .component -}}
{{- $part := dict -}}
{{- if eq $c.kind "render" -}}
{{- $part = include "triptych.renderConfig" .root | fromJson -}}
{{- else if eq $c.kind "worker" -}}
{{- $part = include "triptych.workerConfig" (dict "root" .root "stage" $c.values) | fromJson -}}
{{- else -}}
{{- $part = include "triptych.coordinatorConfig" .root | fromJson -}}
{{- end -}}
{{- $config := $part.server -}}
{{- $_ := set $config "served_model_name" (default $v.model $v.servedModelName) -}}
{{- $_ := set $config "protect_metrics" $v.auth.protectMetrics -}}
{{- if ne $c.kind "render" -}}{{- $_ := set $config "enable_scale_out" $v.enableScaleOut -}}{{- end -}}
{{- if ne $c.kind "coordinator" -}}
{{- if $v.maxModelLen -}}{{- $_ := set $config "max_model_len" (int $v.maxModelLen) -}}{{- end -}}
{{- $_ := set $config.ec "capacity_bytes" $part.ec_bytes -}}
{{- end -}}
{{- if eq $c.kind "worker" -}}
{{- range list "device" "dtype" "kv_bytes" -}}
{{- if hasKey $part . -}}{{- $_ := set $config . (get $part .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $config | toJson -}}
{{- end -}}
