{{/* Names and labels. */}}

{{- define "triptych.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name that clients of the front door use in both modes. */}}
{{- define "triptych.frontDoor" -}}
{{- include "triptych.fullname" . -}}
{{- end -}}

{{/* What selects every pod of the release. */}}
{{- define "triptych.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* What selects the pods of one component: (dict "root" $ "name" "encode"). */}}
{{- define "triptych.componentSelector" -}}
{{ include "triptych.selector" .root }}
app.kubernetes.io/component: {{ .name | quote }}
{{- end -}}

{{/* Labels of an object: (dict "root" $ "name" "encode"); without a name those of the release. */}}
{{- define "triptych.labels" -}}
{{ include "triptych.selector" .root }}
{{- with .name }}
app.kubernetes.io/component: {{ . | quote }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The Secret with the API key and the cluster token. */}}
{{- define "triptych.secretName" -}}
{{- default (include "triptych.fullname" .) .Values.auth.existingSecret -}}
{{- end -}}

{{/* Service account of a component: the coordinator lists EndpointSlices, the others have no use for one. */}}
{{- define "triptych.serviceAccount" -}}
{{- $full := include "triptych.fullname" .root -}}
{{- eq .name "coordinator" | ternary (printf "%s-coordinator" $full) $full -}}
{{- end -}}

{{/* Image of a component: (dict "root" $ "device" "cuda"). */}}
{{- define "triptych.image" -}}
{{- $image := .root.Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- $suffix := eq .device "cuda" | ternary "-cuda" "" -}}
{{- printf "%s:%s" $image.repository (default (printf "%s%s" .root.Chart.AppVersion $suffix) $image.tag) -}}
{{- end -}}
{{- end -}}
