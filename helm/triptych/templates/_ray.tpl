{{/* Mode ray: the cluster's configuration, the Serve config made of it, and Ray's pods. */}}

{{/*
deploy.config.ClusterConfig of one application, as JSON: (dict "root" $ "part" "stages"). How many
replicas there are is not in it but beside it, so that Serve changes their number in place. Secrets
come from the environment.
*/}}
{{- define "triptych.clusterConfig" -}}
{{- $root := .root -}}
{{- $v := .root.Values -}}
{{- $config := dict
  "model" $v.model
  "served_model_name" (default $v.model $v.servedModelName)
  "topology" $v.topology
  "cluster_host" "auto"
  "enable_scale_out" $v.enableScaleOut
  "protect_metrics" $v.auth.protectMetrics
  "drain_s" (float64 $v.drain.streamSeconds)
  "log_level" $v.telemetry.logLevel -}}
{{- with $v.modelRevision -}}{{- $_ := set $config "revision" . -}}{{- end -}}
{{- if $v.maxModelLen -}}{{- $_ := set $config "max_model_len" (int $v.maxModelLen) -}}{{- end -}}
{{- if eq .part "coordinator" -}}
{{- $_ := set $config "coordinator" (include "triptych.coordinatorConfig" $root | fromJson) -}}
{{- else -}}
{{- $_ := set $config "render" (include "triptych.renderConfig" $root | fromJson) -}}
{{- range (include "triptych.stages" $root | fromJson).stages -}}
{{- $_ := set $config .role (include "triptych.workerConfig" (dict "root" $root "stage" (get $v.stages .key)) | fromJson) -}}
{{- end -}}
{{- /* A pod has an address of its own, so ports can be the same everywhere, and be scraped. */ -}}
{{- range $role, $section := $config -}}
{{- if kindIs "map" $section -}}
{{- range $key, $name := dict "http" "http_port" "grpc" "grpc_port" -}}
{{- with get $v.ports $key -}}{{- $_ := set $section.server $name (int .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $config | toJson -}}
{{- end -}}

{{- define "triptych.renderConfig" -}}
{{- $server := dict -}}
{{- if .Values.render.processes -}}{{- $_ := set $server "processes" (int .Values.render.processes) -}}{{- end -}}
{{- $media := dict "allow_private_addresses" .Values.render.allowPrivateAddresses -}}
{{- with .Values.render.allowedMediaDomains -}}{{- $_ := set $media "allowed_domains" . -}}{{- end -}}
{{- $_ := set $server "media" $media -}}
{{- $_ := set $server "ec" (include "triptych.ecConfig" . | fromJson) -}}
{{- dict "ec_bytes" (include "triptych.bytes" .Values.render.storeSize | int64) "server" $server | toJson -}}
{{- end -}}

{{- define "triptych.workerConfig" -}}
{{- $stage := .stage -}}
{{- $server := dict "block_size" (int .root.Values.blockSize) "vision" $stage.vision "ec" (include "triptych.ecConfig" .root | fromJson) -}}
{{- range $key, $name := dict "maxNumSeqs" "max_num_seqs" "maxNumBatchedTokens" "max_num_batched_tokens" "encoderMaxBatchTokens" "encoder_max_batch_tokens" "threads" "threads" -}}
{{- with get $stage $key -}}{{- $_ := set $server $name (int .) -}}{{- end -}}
{{- end -}}
{{- $config := dict
  "num_gpus" (float64 $stage.gpus)
  "device" $stage.device
  "dtype" $stage.dtype
  "ec_bytes" (include "triptych.bytes" $stage.storeSize | int64)
  "server" $server -}}
{{- with $stage.kvSize -}}{{- $_ := set $config "kv_bytes" (include "triptych.bytes" . | int64) -}}{{- end -}}
{{- $config | toJson -}}
{{- end -}}

{{- define "triptych.ecConfig" -}}
{{- $ec := dict "lease_s" (float64 .Values.ec.leaseSeconds) -}}
{{- with .Values.ports.exchange -}}{{- $_ := set $ec "port" (int .) -}}{{- end -}}
{{- with .Values.ec.transports -}}{{- $_ := set $ec "transports" . -}}{{- end -}}
{{- with .Values.ec.allowedHosts -}}{{- $_ := set $ec "allowed_hosts" . -}}{{- end -}}
{{- $ec | toJson -}}
{{- end -}}

{{- define "triptych.coordinatorConfig" -}}
{{- $server := dict
  "max_body_bytes" (include "triptych.bytes" .Values.coordinator.maxBodySize | int64)
  "request_timeout_s" (float64 .Values.coordinator.requestTimeoutSeconds)
  "embedding_lease_s" (float64 .Values.ec.leaseSeconds) -}}
{{- with .Values.telemetry.otlpEndpoint -}}
{{- $_ := set $server "tracing" "otlp" -}}
{{- $_ := set $server "otlp_endpoint" . -}}
{{- end -}}
{{- dict "server" $server | toJson -}}
{{- end -}}

{{/* Serve's config file: the stages, and the coordinators, which are updated one without the other. */}}
{{- define "triptych.serveConfig" -}}
{{- $stages := list -}}
{{- $coordinators := list -}}
{{- range (include "triptych.components" . | fromJson).components -}}
{{- $options := dict "num_cpus" 0 "num_gpus" (float64 (.values.gpus | default 0)) "resources" (dict (printf "triptych-%s" .name) 1) -}}
{{- $deployment := dict "name" .role "ray_actor_options" $options -}}
{{- $scaling := .values.autoscaling -}}
{{- if $scaling.enabled -}}
{{- $bounds := dict "min_replicas" (int $scaling.minReplicas) "max_replicas" (int $scaling.maxReplicas) "target_ongoing_requests" (float64 $scaling.waitingPerReplica) -}}
{{- if ne .kind "coordinator" -}}
{{- /* Their traffic is gRPC, which Serve does not count. */ -}}
{{- $_ := set $bounds "policy" (dict "policy_function" "deploy.autoscaling:by_load") -}}
{{- end -}}
{{- $_ := set $deployment "autoscaling_config" $bounds -}}
{{- else -}}
{{- $_ := set $deployment "num_replicas" (int .values.replicas) -}}
{{- end -}}
{{- if eq .kind "coordinator" -}}
{{- $coordinators = append $coordinators $deployment -}}
{{- else -}}
{{- $stages = append $stages $deployment -}}
{{- end -}}
{{- end -}}
{{- dict
  "proxy_location" "EveryNode"
  "http_options" (dict "host" "0.0.0.0" "port" (int .Values.ray.servePort))
  "logging_config" (dict "log_level" .Values.telemetry.logLevel "encoding" "JSON")
  "applications" (list
    (dict
      "name" "triptych-stages"
      "route_prefix" nil
      "import_path" "deploy.app:build"
      "args" (dict "part" "stages" "config" (include "triptych.clusterConfig" (dict "root" $ "part" "stages") | fromJson))
      "deployments" $stages)
    (dict
      "name" "triptych"
      "route_prefix" "/"
      "import_path" "deploy.app:build"
      "args" (dict "part" "coordinator" "config" (include "triptych.clusterConfig" (dict "root" $ "part" "coordinator") | fromJson))
      "deployments" $coordinators)) | toYaml -}}
{{- end -}}

{{/* Environment of every Ray pod, beyond that of every component. */}}
{{- define "triptych.rayEnv" -}}
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: RAY_SERVE_ENABLE_HA_PROXY
  value: "1"
- name: RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S
  value: {{ int64 .Values.coordinator.requestTimeoutSeconds | quote }}
- name: RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S
  value: "1"
- name: RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S
  value: "5"
- name: RAY_SERVE_PORT_QUARANTINE_S
  value: "5"
{{- /* Ray gives way to everything else by default; here its processes are the service. */}}
- name: RAY_worker_niceness
  value: "0"
- name: TOKENIZERS_PARALLELISM
  value: "false"
{{- end -}}

{{/* "true" where any component is scaled. */}}
{{- define "triptych.rayScales" -}}
{{- $found := "" -}}
{{- range (include "triptych.components" . | fromJson).components -}}
{{- if .values.autoscaling.enabled -}}{{- $found = "true" -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* RayClusterSpec, shared by the RayService and what is kept under deploy/. */}}
{{- define "triptych.rayCluster" -}}
{{- $scales := include "triptych.rayScales" . -}}
{{- $ports := list
  (dict "name" "gcs" "containerPort" 6379)
  (dict "name" "dashboard" "containerPort" 8265)
  (dict "name" "client" "containerPort" 10001)
  (dict "name" "metrics" "containerPort" 8080)
  (dict "name" "serve" "containerPort" (int .Values.ray.servePort)) -}}
rayVersion: {{ .Values.ray.version | quote }}
enableInTreeAutoscaling: {{ ternary true false (ne $scales "") }}
{{- if $scales }}
autoscalerOptions:
  version: v2
  idleTimeoutSeconds: {{ .Values.ray.idleTimeoutSeconds | int64 }}
  upscalingMode: Default
  securityContext:
    {{- include "triptych.containerSecurity" (dict) | nindent 4 }}
  resources:
    requests:
      cpu: 500m
      memory: 512Mi
    limits:
      cpu: 500m
      memory: 512Mi
{{- end }}
{{- if .Values.ray.redis.enabled }}
gcsFaultToleranceOptions:
  redisAddress: {{ .Values.ray.redis.address | quote }}
  externalStorageNamespace: {{ include "triptych.fullname" . | quote }}
  {{- with .Values.ray.redis.existingSecret }}
  redisPassword:
    valueFrom:
      secretKeyRef:
        name: {{ . | quote }}
        key: {{ $.Values.ray.redis.secretKey | quote }}
  {{- end }}
{{- end }}
headGroupSpec:
  rayStartParams:
    num-cpus: "0"
    dashboard-host: 0.0.0.0
  template:
    {{- /* The operator makes the account that the autoscaler needs. */}}
    {{- include "triptych.pod" (dict
      "root" . "name" "head" "kind" "head" "values" .Values.ray.head "container" "ray-head"
      "ports" $ports "env" (include "triptych.rayEnv" . | fromYamlArray)
      "preStop" true "token" (ne $scales "") "serviceAccount" (ternary "-" "" (ne $scales ""))
      "device" "cpu" "shmBytes" 1073741824 "model" false "weights" false) | nindent 4 }}
workerGroupSpecs:
  {{- range (include "triptych.components" . | fromJson).components }}
  {{- $scaling := .values.autoscaling }}
  - groupName: {{ .name | quote }}
    replicas: {{ $scaling.enabled | ternary $scaling.minReplicas .values.replicas | int64 }}
    minReplicas: {{ $scaling.enabled | ternary $scaling.minReplicas .values.replicas | int64 }}
    maxReplicas: {{ $scaling.enabled | ternary $scaling.maxReplicas .values.replicas | int64 }}
    rayStartParams:
      {{- /* One replica of the stage takes the whole pod. */}}
      resources: {{ dict (printf "triptych-%s" .name) 1 | toJson | quote | squote }}
      {{- if .values.gpus }}
      num-gpus: {{ .values.gpus | quote }}
      {{- end }}
    template:
      {{- $coordinator := eq .kind "coordinator" }}
      {{- include "triptych.pod" (dict
        "root" $ "name" .name "kind" .kind "values" .values "container" "ray-worker"
        "ports" (include "triptych.rayPorts" (dict "root" $ "coordinator" $coordinator) | fromYamlArray)
        "env" (include "triptych.rayEnv" $ | fromYamlArray)
        "preStop" true "token" false "serviceAccount" (include "triptych.fullname" $)
        "device" (.values.device | default "cpu") "gpus" (.values.gpus | default 0)
        "rdma" (not $coordinator) "model" true "weights" (eq .kind "worker")
        "shmBytes" ($coordinator | ternary 1073741824 (add (include "triptych.shmBytes" (dict "storeSize" (.values.storeSize | default "0"))) 805306368))) | nindent 6 }}
  {{- end }}
{{- end -}}

{{/* Ports of a worker group's pods. */}}
{{- define "triptych.rayPorts" -}}
- name: metrics
  containerPort: 8080
- name: serve
  containerPort: {{ .root.Values.ray.servePort | int64 }}
{{- if not .coordinator }}
{{- range $name, $port := .root.Values.ports }}
{{- if $port }}
- name: {{ $name }}
  containerPort: {{ $port | int64 }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
