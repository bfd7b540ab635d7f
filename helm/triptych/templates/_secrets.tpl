{{/*
The API key and the cluster token: the value given, else what the cluster has, else a new random
one. `lookup` needs a cluster: what renders without one should name auth.existingSecret.
*/}}
{{- define "triptych.secretData" -}}
{{- $given := dict "cluster-token" .Values.auth.clusterToken.value -}}
{{- if .Values.auth.apiKey.enabled -}}{{- $_ := set $given "api-key" .Values.auth.apiKey.value -}}{{- end -}}
{{- /* One choice per render, so that the checksum on the pods is that of the Secret. */ -}}
{{- if not (hasKey .Values.auth "_chosen") -}}
{{- $found := (lookup "v1" "Secret" .Release.Namespace (include "triptych.secretName" .)) | default dict -}}
{{- $held := $found.data | default dict -}}
{{- $chosen := dict -}}
{{- range $key, $value := $given -}}
{{- if $value -}}
{{- $_ := set $chosen $key ($value | b64enc) -}}
{{- else if hasKey $held $key -}}
{{- $_ := set $chosen $key (get $held $key) -}}
{{- else -}}
{{- $_ := set $chosen $key (randAlphaNum 43 | b64enc) -}}
{{- end -}}
{{- end -}}
{{- $_ := set .Values.auth "_chosen" $chosen -}}
{{- end -}}
{{- .Values.auth._chosen | toYaml -}}
{{- end -}}

{{- define "triptych.secretChecksum" -}}
{{- include "triptych.secretData" . | sha256sum -}}
{{- end -}}
