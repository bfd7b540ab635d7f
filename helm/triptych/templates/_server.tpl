{{/* What the main container of a server has in mode standalone: ports and probes. */}}

{{- define "triptych.ports" -}}
{{- if eq .component.kind "coordinator" -}}
- name: http
  containerPort: {{ .root.Values.coordinator.port | int64 }}
{{- else -}}
- name: http
  containerPort: {{ .root.Values.ports.http | int64 }}
- name: grpc
  containerPort: {{ .root.Values.ports.grpc | int64 }}
- name: exchange
  containerPort: {{ .root.Values.ports.exchange | int64 }}
{{- end -}}
{{- end -}}

{{/* Loading may take `startupSeconds`; a loaded server that stops answering is restarted. */}}
{{- define "triptych.probes" -}}
startupProbe:
  httpGet:
    path: /live
    port: http
  periodSeconds: 5
  failureThreshold: {{ divf (int .startupSeconds) 5 | ceil | int64 }}
  timeoutSeconds: 5
livenessProbe:
  httpGet:
    path: /live
    port: http
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /health
    port: http
  periodSeconds: 2
  failureThreshold: 2
  timeoutSeconds: 5
{{- end -}}
