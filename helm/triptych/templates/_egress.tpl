{{/* Where a component may connect to when egress is restricted. */}}
{{- define "triptych.egress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
- to:
    - podSelector:
        matchLabels:
          {{- include "triptych.selector" .root | nindent 10 }}
{{- $kind := .component.kind }}
{{- if eq $kind "coordinator" }}
{{- /* The API server, wherever it is: policies cannot name it. */}}
- ports:
    - port: 443
    - port: 6443
{{- end }}
{{- if eq $kind "render" }}
{{- /* Media, from public addresses only unless private ones are allowed. */}}
- to:
    - ipBlock:
        cidr: 0.0.0.0/0
        {{- if not .root.Values.render.allowPrivateAddresses }}
        except: [10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]
        {{- end }}
    - ipBlock:
        cidr: ::/0
        {{- if not .root.Values.render.allowPrivateAddresses }}
        except: ["::1/128", "fc00::/7", "fe80::/10"]
        {{- end }}
{{- else if include "triptych.fromHub" .root }}
- ports:
    - port: 443
{{- end }}
{{- if and (eq $kind "coordinator") .root.Values.telemetry.otlpEndpoint }}
{{- with .root.Values.telemetry.otlpEndpoint }}
- ports:
    - port: {{ regexFind ":[0-9]+(/|$)" . | trimPrefix ":" | trimSuffix "/" | default (hasPrefix "https" . | ternary "443" "4318") | int }}
{{- end }}
{{- end }}
{{- end -}}
