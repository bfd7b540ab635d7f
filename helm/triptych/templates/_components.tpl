{{/* Which components there are, and numbers that follow from their values. */}}

{{/* The worker stages of the topology, as JSON: key in the values, role, name in Kubernetes. */}}
{{- define "triptych.stages" -}}
{{- $all := list
  (dict "key" "encode" "role" "encode" "name" "encode")
  (dict "key" "prefill" "role" "prefill" "name" "prefill")
  (dict "key" "decode" "role" "decode" "name" "decode")
  (dict "key" "prefillDecode" "role" "prefill_decode" "name" "prefill-decode")
  (dict "key" "all" "role" "all" "name" "all") -}}
{{- $roles := get (dict "epd" (list "encode" "prefill" "decode") "e-pd" (list "encode" "prefill_decode") "all" (list "all")) .Values.topology -}}
{{- $stages := list -}}
{{- range $all -}}
{{- if has .role $roles -}}{{- $stages = append $stages . -}}{{- end -}}
{{- end -}}
{{- dict "stages" $stages | toJson -}}
{{- end -}}

{{/* Every component of mode standalone, as JSON: kind, name, role, values. */}}
{{- define "triptych.components" -}}
{{- $components := list (dict "kind" "render" "role" "render" "name" "render" "values" .Values.render) -}}
{{- range (include "triptych.stages" . | fromJson).stages -}}
{{- $components = append $components (dict "kind" "worker" "role" .role "name" .name "values" (get $.Values.stages .key)) -}}
{{- end -}}
{{- $components = append $components (dict "kind" "coordinator" "role" "coordinator" "name" "coordinator" "values" .Values.coordinator) -}}
{{- dict "components" $components | toJson -}}
{{- end -}}

{{/* "true" where any stage runs on a GPU. */}}
{{- define "triptych.usesGpu" -}}
{{- $found := "" -}}
{{- range (include "triptych.stages" . | fromJson).stages -}}
{{- if eq (get $.Values.stages .key).device "cuda" -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Bytes of `4Gi`. */}}
{{- define "triptych.bytes" -}}
{{- $digits := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[KMGT]i$" . -}}
{{- $factor := get (dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) $unit | int64 -}}
{{- mul $digits $factor -}}
{{- end -}}

{{/* Bytes of a quantity of memory, decimal and fractional units included, rounded down. */}}
{{- define "triptych.quantityBytes" -}}
{{- $text := . | toString -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $factor := get (dict "" 1.0 "m" 0.001 "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "T" 1000000000000.0 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0) $unit -}}
{{- floor (mulf $number $factor) | int64 -}}
{{- end -}}

{{/* Size of /dev/shm of a component with a store: the store and room for torch and the transports. */}}
{{- define "triptych.shmBytes" -}}
{{- add (include "triptych.bytes" .storeSize | int64) 268435456 -}}
{{- end -}}

{{/* "true" where the model comes from the hub. */}}
{{- define "triptych.fromHub" -}}
{{- if not (or (eq .Values.model "demo") (hasPrefix "/" .Values.model)) -}}true{{- end -}}
{{- end -}}

{{/* "true" where an init container downloads the model. */}}
{{- define "triptych.downloads" -}}
{{- if and (include "triptych.fromHub" .) .Values.modelCache.download (not .Values.modelCache.readOnly) -}}true{{- end -}}
{{- end -}}

{{/* Seconds that a pod may take to leave. */}}
{{- define "triptych.graceSeconds" -}}
{{- add .Values.drain.preStopSeconds .Values.drain.streamSeconds 15 -}}
{{- end -}}
