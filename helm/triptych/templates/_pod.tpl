{{/*
The one pod template. Every Deployment, every Ray group and the test hook use it.

Argument, a dict:
  root        the chart's context
  name        component
  kind        coordinator | render | worker | head | test
  values      the component's values: resources, placement, environment
  container   name of the main container
  command, args, ports, env   of the main container; lists, may be absent
  probes      dict of probes, may be absent
  preStop     whether to wait for leases before the signal to stop
  token       whether to mount the service account's token
  serviceAccount  its name; absent: the component's; "-": left to an operator
  device      cuda | cpu
  gpus        number of GPUs
  rdma        whether it moves bulk bytes between nodes
  shmBytes    size of /dev/shm, may be absent
  model       whether it reads the model; weights: whether it reads its weights
  volumes, mounts  further ones, may be absent
  restartPolicy    may be absent
  configChecksum   of its ConfigMap, may be absent
  justify     false where the owner has the exceptions to checkov's rules among its annotations
*/}}
{{- define "triptych.pod" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
{{- $rdma := and .rdma $values.rdma.enabled -}}
{{- $cache := and .model (ne $values.model "demo") -}}
metadata:
  labels:
    {{- include "triptych.labels" (dict "root" .root "name" .name) | nindent 4 }}
    {{- with .values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if not (and (hasKey . "justify") (not .justify)) }}
    {{- include "triptych.justifications" . | nindent 4 }}
    {{- end }}
    {{- if not $values.auth.existingSecret }}
    checksum/secret: {{ include "triptych.secretChecksum" .root | quote }}
    {{- end }}
    {{- with .configChecksum }}
    checksum/config: {{ . | quote }}
    {{- end }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- if ne (.serviceAccount | default "") "-" }}
  serviceAccountName: {{ default (include "triptych.serviceAccount" .) .serviceAccount | quote }}
  {{- end }}
  automountServiceAccountToken: {{ .token | default false }}
  enableServiceLinks: false
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- if .preStop }}
  terminationGracePeriodSeconds: {{ include "triptych.graceSeconds" .root }}
  {{- end }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $values.security.runAsUser | int64 }}
    runAsGroup: {{ $values.security.runAsGroup | int64 }}
    fsGroup: {{ $values.security.runAsGroup | int64 }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- if and $rdma $values.rdma.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with .values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .values.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if ne .kind "test" }}
  topologySpreadConstraints:
    {{- $selector := include "triptych.componentSelector" . | fromYaml }}
    {{- $spread := .values.topologySpreadConstraints | default (list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway")) }}
    {{- range $spread }}
    {{- list (merge (dict "labelSelector" (dict "matchLabels" $selector)) .) | toYaml | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if and $cache .model (include "triptych.downloads" .root) }}
  initContainers:
    - name: download-model
      image: {{ include "triptych.image" . | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [python, -c]
      args:
        - import sys; from deploy.model_source import resolve; print(resolve(sys.argv[1], sys.argv[2], weights=sys.argv[3] == "weights"))
        - {{ $values.model | quote }}
        - {{ $values.modelRevision | quote }}
        - {{ .weights | ternary "weights" "configuration" | quote }}
      env:
        {{- include "triptych.hubEnv" .root | nindent 8 }}
        - name: HF_HUB_OFFLINE
          value: "0"
      securityContext:
        {{- include "triptych.containerSecurity" . | nindent 8 }}
      resources:
        requests:
          cpu: 500m
          memory: 1Gi
        limits:
          cpu: "2"
          memory: 4Gi
      volumeMounts:
        - name: model-cache
          mountPath: {{ $values.modelCache.path | quote }}
        - name: tmp
          mountPath: /tmp
  {{- end }}
  containers:
    - name: {{ .container | quote }}
      image: {{ include "triptych.image" . | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      {{- with .command }}
      command:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .args }}
      args:
        {{- range . }}
        - {{ . | toString | quote }}
        {{- end }}
      {{- end }}
      {{- with .ports }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      env:
        {{- include "triptych.env" . | nindent 8 }}
        {{- with .env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- range $name, $value := .values.extraEnv }}
        - name: {{ $name | quote }}
          value: {{ $value | quote }}
        {{- end }}
      securityContext:
        {{- include "triptych.containerSecurity" (merge (dict "ipcLock" (and $rdma $values.rdma.ipcLock)) .) | nindent 8 }}
      resources:
        {{- include "triptych.resources" . | nindent 8 }}
      {{- with .probes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- if .preStop }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ int64 $values.drain.preStopSeconds | quote }}]
      {{- end }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- if .shmBytes }}
        - name: shm
          mountPath: /dev/shm
        {{- end }}
        {{- if $cache }}
        - name: model-cache
          mountPath: {{ $values.modelCache.path | quote }}
          {{- if $values.modelCache.readOnly }}
          readOnly: true
          {{- end }}
        {{- end }}
        {{- if and $rdma $values.rdma.hugepages.size }}
        - name: hugepages
          mountPath: /dev/hugepages
        {{- end }}
        {{- with .mounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if .shmBytes }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ .shmBytes | quote }}
    {{- end }}
    {{- if $cache }}
    - name: model-cache
      {{- if eq $values.modelCache.type "pvc" }}
      persistentVolumeClaim:
        claimName: {{ default (printf "%s-models" (include "triptych.fullname" .root)) $values.modelCache.existingClaim | quote }}
      {{- else if eq $values.modelCache.type "hostPath" }}
      hostPath:
        path: {{ $values.modelCache.hostPath | quote }}
        type: {{ $values.modelCache.readOnly | ternary "Directory" "DirectoryOrCreate" }}
      {{- else }}
      emptyDir:
        sizeLimit: {{ .weights | ternary $values.modelCache.size "1Gi" | quote }}
      {{- end }}
    {{- end }}
    {{- if and $rdma $values.rdma.hugepages.size }}
    - name: hugepages
      emptyDir:
        medium: HugePages-{{ $values.rdma.hugepages.pageSize }}
    {{- end }}
    {{- with .volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "triptych.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
  {{- if .ipcLock }}
  add: [IPC_LOCK]
  {{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Resources of the main container: those of the values, and GPUs, huge pages and RDMA devices. */}}
{{- define "triptych.resources" -}}
{{- $rdma := .root.Values.rdma -}}
{{- $more := dict -}}
{{- if gt (int (.gpus | default 0)) 0 -}}
{{- $_ := set $more .root.Values.gpu.resource (.gpus | toString) -}}
{{- end -}}
{{- if and .rdma $rdma.enabled -}}
{{- $_ := set $more $rdma.resource ($rdma.count | toString) -}}
{{- if $rdma.hugepages.size -}}
{{- $_ := set $more (printf "hugepages-%s" $rdma.hugepages.pageSize) $rdma.hugepages.size -}}
{{- end -}}
{{- end -}}
{{- $requests := merge (dict) $more (.values.resources.requests | default dict) -}}
{{- $limits := merge (dict) $more (.values.resources.limits | default dict) -}}
{{- dict "requests" $requests "limits" $limits | toYaml -}}
{{- end -}}

{{/* The hub's environment. */}}
{{- define "triptych.hubEnv" -}}
- name: HF_HOME
  value: {{ .Values.modelCache.path | quote }}
- name: HF_HUB_DISABLE_TELEMETRY
  value: "1"
{{- with .Values.huggingface.endpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.huggingface.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: token
{{- end }}
{{- end -}}

{{/* Environment that every component has. */}}
{{- define "triptych.env" -}}
{{- $values := .root.Values -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: HOME
  value: /tmp
- name: PYTHONUNBUFFERED
  value: "1"
{{- if $values.auth.apiKey.enabled }}
- name: TRIPTYCH_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "triptych.secretName" .root | quote }}
      key: api-key
{{- end }}
{{- if ne .kind "test" }}
- name: TRIPTYCH_CLUSTER_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "triptych.secretName" .root | quote }}
      key: cluster-token
{{- if and .model (ne $values.model "demo") }}
{{ include "triptych.hubEnv" .root }}
{{- if or (include "triptych.downloads" .root) $values.modelCache.readOnly }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- end }}
{{- if and .rdma $values.rdma.enabled }}
{{- range $name, $value := $values.rdma.ucx }}
- name: {{ $name | quote }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
