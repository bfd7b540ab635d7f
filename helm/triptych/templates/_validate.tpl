{{/* Combinations of values that cannot work. Each is refused with a sentence. */}}
{{- define "triptych.validate" -}}
{{- $v := .Values -}}
{{- $stages := (include "triptych.stages" . | fromJson).stages -}}
{{- if not $v.model -}}
{{- fail "model must be set: --set model=Qwen/Qwen3-VL-8B-Instruct, an absolute path inside the container, or demo" -}}
{{- end -}}
{{- if not (or (eq $v.model "demo") (regexMatch "^/[^\\s]+$" $v.model) (regexMatch "^[A-Za-z0-9][\\w.-]*/[A-Za-z0-9][\\w.-]*$" $v.model)) -}}
{{- fail (printf "model %q is neither a Hugging Face name (owner/name), nor an absolute path, nor demo" $v.model) -}}
{{- end -}}
{{- include "triptych.validateStages" (dict "root" $ "stages" $stages) -}}
{{- include "triptych.validateTransfer" . -}}
{{- include "triptych.validateScaling" . -}}
{{- include "triptych.validateModelCache" . -}}
{{- include "triptych.validateExposure" . -}}
{{- include "triptych.validateRay" . -}}
{{- end -}}

{{- define "triptych.validateStages" -}}
{{- $v := .root.Values -}}
{{- $dtype := "" -}}
{{- range .stages -}}
{{- $stage := get $v.stages .key -}}
{{- if and (eq $stage.device "cuda") (eq (int $stage.gpus) 0) -}}
{{- fail (printf "stages.%s.device is cuda but gpus is 0: give it a GPU, or set device to cpu" .key) -}}
{{- end -}}
{{- if and (eq $stage.device "cpu") (gt (int $stage.gpus) 0) -}}
{{- fail (printf "stages.%s.device is cpu but gpus is %v: a GPU would stand idle, so set gpus to 0" .key $stage.gpus) -}}
{{- end -}}
{{- if and $dtype (ne $dtype $stage.dtype) -}}
{{- fail (printf "stages.%s.dtype is %s and another stage has %s: embeddings and KV blocks are handed over as they are, so all stages need the same dtype" .key $stage.dtype $dtype) -}}
{{- end -}}
{{- $dtype = $stage.dtype -}}
{{- end -}}
{{- range (append .stages (dict "key" "render" "name" "render")) -}}
{{- $component := eq .key "render" | ternary $v.render (get $v.stages .key) -}}
{{- $path := eq .key "render" | ternary "render" (printf "stages.%s" .key) -}}
{{- with $component.resources.limits -}}
{{- with .memory -}}
{{- $shm := include "triptych.shmBytes" $component | int64 -}}
{{- if ge $shm (include "triptych.quantityBytes" . | int64) -}}
{{- fail (printf "%s.storeSize is %s and its memory limit %v: the store lies in /dev/shm, which counts towards the limit, so the limit must be larger by more than 256Mi" $path $component.storeSize .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "triptych.validateTransfer" -}}
{{- $v := .Values -}}
{{- $transports := $v.ec.transports -}}
{{- if and $transports (eq (join "," $transports) "shm") -}}
{{- fail "ec.transports is shm alone, which reaches peers in the same pod's memory only: add tcp, which needs nothing" -}}
{{- end -}}
{{- if and $v.rdma.enabled $transports (not (or (has "nixl" $transports) (has "ucx" $transports))) -}}
{{- fail (printf "rdma.enabled is true but ec.transports is %s: only nixl and ucx use RDMA, so add one or leave the list empty" (join ", " $transports)) -}}
{{- end -}}
{{- if and $v.rdma.enabled $v.rdma.hostNetwork $v.networkPolicy.enabled -}}
{{- fail "rdma.hostNetwork is true and networkPolicy.enabled too: policies do not apply to pods in the host's network, so set networkPolicy.enabled=false and guard the nodes instead" -}}
{{- end -}}
{{- if and (not $v.rdma.enabled) $v.rdma.hugepages.size -}}
{{- fail "rdma.hugepages.size is set but rdma.enabled is false: set rdma.enabled=true, or leave the size empty" -}}
{{- end -}}
{{- if le (int $v.drain.preStopSeconds) (int $v.ec.leaseSeconds) -}}
{{- fail (printf "drain.preStopSeconds is %v and ec.leaseSeconds %v: a replica must stay until the leases it gave are over, so the drain must be longer" $v.drain.preStopSeconds $v.ec.leaseSeconds) -}}
{{- end -}}
{{- range $name, $port := $v.ports -}}
{{- if and (eq (int $port) 0) (eq $v.mode "standalone") -}}
{{- fail (printf "ports.%s is 0 but mode is standalone, where Services name the port: choose one" $name) -}}
{{- end -}}
{{- if and (gt (int $port) 0) (lt (int $port) 1024) -}}
{{- fail (printf "ports.%s is %v: processes run without root, which ports below 1024 need" $name $port) -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int $v.ports.http) 0) (or (eq (int $v.ports.http) (int $v.ports.grpc)) (eq (int $v.ports.http) (int $v.ports.exchange)) (eq (int $v.ports.grpc) (int $v.ports.exchange))) -}}
{{- fail (printf "ports.http, ports.grpc and ports.exchange are %v, %v and %v: one process listens on all three, so they must differ" $v.ports.http $v.ports.grpc $v.ports.exchange) -}}
{{- end -}}
{{- end -}}

{{- define "triptych.validateScaling" -}}
{{- $v := .Values -}}
{{- $scaled := false -}}
{{- range (include "triptych.components" . | fromJson).components -}}
{{- $path := eq .kind "worker" | ternary (printf "stages.%s" (eq .name "prefill-decode" | ternary "prefillDecode" .name)) .name -}}
{{- $scaling := .values.autoscaling -}}
{{- if $scaling.enabled -}}
{{- $scaled = true -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is %v, more than maxReplicas %v" $path $scaling.minReplicas $scaling.maxReplicas) -}}
{{- end -}}
{{- if and (eq $v.mode "standalone") (eq $v.autoscaling.kind "hpa") (not (and .values.resources.requests .values.resources.requests.cpu)) -}}
{{- fail (printf "%s is scaled by CPU use, which is measured against its CPU request: set %s.resources.requests.cpu" $path $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.mode "standalone") (eq $v.autoscaling.kind "keda") $scaled (not $v.autoscaling.prometheusAddress) -}}
{{- fail "autoscaling.kind is keda but autoscaling.prometheusAddress is empty: KEDA reads our metrics from Prometheus" -}}
{{- end -}}
{{- end -}}

{{- define "triptych.validateModelCache" -}}
{{- $v := .Values -}}
{{- $cache := $v.modelCache -}}
{{- if and (eq $cache.type "hostPath") (not $cache.hostPath) -}}
{{- fail "modelCache.type is hostPath but modelCache.hostPath is empty: name the folder of the node" -}}
{{- end -}}
{{- if and (ne $cache.type "hostPath") $cache.hostPath -}}
{{- fail (printf "modelCache.hostPath is set but modelCache.type is %s: set the type to hostPath, or leave the folder empty" $cache.type) -}}
{{- end -}}
{{- if and (eq $cache.type "pvc") (not $cache.existingClaim) (eq $cache.accessMode "ReadWriteOnce") -}}
{{- fail "modelCache.accessMode is ReadWriteOnce, but pods on several nodes mount the claim: use ReadWriteMany, or modelCache.type emptyDir or hostPath" -}}
{{- end -}}
{{- if and (ne $cache.type "pvc") $cache.existingClaim -}}
{{- fail (printf "modelCache.existingClaim is set but modelCache.type is %s: set the type to pvc" $cache.type) -}}
{{- end -}}
{{- if and (hasPrefix "/" $v.model) (eq $cache.type "emptyDir") -}}
{{- fail (printf "model is the path %s but modelCache.type is emptyDir, which starts empty: use pvc or hostPath" $v.model) -}}
{{- end -}}
{{- if and (hasPrefix "/" $v.model) (not (hasPrefix (printf "%s/" (trimSuffix "/" $cache.path)) $v.model)) -}}
{{- fail (printf "model is the path %s, outside of modelCache.path %s, where nothing is mounted" $v.model $cache.path) -}}
{{- end -}}
{{- if and $cache.readOnly (eq $cache.type "emptyDir") (ne $v.model "demo") -}}
{{- fail "modelCache.readOnly is true but its type is emptyDir, which starts empty: use pvc or hostPath" -}}
{{- end -}}
{{- if and $cache.readOnly (eq $cache.type "pvc") (not $cache.existingClaim) -}}
{{- fail "modelCache.readOnly is true but the claim is a new one, which starts empty: name modelCache.existingClaim" -}}
{{- end -}}
{{- end -}}

{{- define "triptych.validateExposure" -}}
{{- $v := .Values -}}
{{- if and $v.ingress.enabled $v.ingress.tls.enabled (not $v.ingress.host) -}}
{{- fail "ingress.tls.enabled is true but ingress.host is empty: a certificate is for a host name" -}}
{{- end -}}
{{- if and $v.ingress.enabled $v.ingress.tls.enabled (not $v.ingress.tls.secretName) -}}
{{- fail "ingress.tls.enabled is true but ingress.tls.secretName is empty: name the secret with the certificate" -}}
{{- end -}}
{{- if and $v.gateway.enabled $v.gateway.create $v.gateway.parentRefs -}}
{{- fail "gateway.create is true and gateway.parentRefs is set: the route attaches to the new Gateway, so leave parentRefs empty" -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.create) (not $v.gateway.parentRefs) -}}
{{- fail "gateway.enabled is true but there is no Gateway to attach to: set gateway.parentRefs, or gateway.create=true" -}}
{{- end -}}
{{- if and $v.gateway.create (not $v.gateway.enabled) -}}
{{- fail "gateway.create is true but gateway.enabled is false: a Gateway without a route serves nothing" -}}
{{- end -}}
{{- if and $v.gateway.create (not (and $v.gateway.className $v.gateway.tlsSecretName)) -}}
{{- fail "gateway.create is true but gateway.className or gateway.tlsSecretName is empty: a Gateway needs both a class and a certificate" -}}
{{- end -}}
{{- if and $v.auth.existingSecret (or $v.auth.apiKey.value $v.auth.clusterToken.value) -}}
{{- fail "auth.existingSecret is set together with auth.apiKey.value or auth.clusterToken.value: the secret of yours holds both, so leave the values empty" -}}
{{- end -}}
{{- if and $v.auth.protectMetrics (not $v.auth.apiKey.enabled) -}}
{{- fail "auth.protectMetrics is true but auth.apiKey.enabled is false: there is no key to protect them with" -}}
{{- end -}}
{{- if and (not $v.auth.apiKey.enabled) $v.auth.apiKey.value -}}
{{- fail "auth.apiKey.value is set but auth.apiKey.enabled is false: clients would not be asked for it" -}}
{{- end -}}
{{- end -}}

{{- define "triptych.validateRay" -}}
{{- $v := .Values -}}
{{- if eq $v.mode "standalone" -}}
{{- if $v.ray.redis.enabled -}}
{{- fail "ray.redis.enabled is true but mode is standalone, which runs no Ray: set mode=ray" -}}
{{- end -}}
{{- else -}}
{{- if and $v.ray.redis.enabled (not $v.ray.redis.address) -}}
{{- fail "ray.redis.enabled is true but ray.redis.address is empty: Redis is not part of this chart" -}}
{{- end -}}
{{- if $v.monitoring.serviceMonitor -}}
{{- fail "monitoring.serviceMonitor is true but mode is ray, where each scrape of the service would reach another coordinator: use monitoring.podMonitor" -}}
{{- end -}}
{{- if eq $v.autoscaling.kind "keda" -}}
{{- fail "autoscaling.kind is keda but mode is ray, where Serve and Ray's autoscaler decide: leave it at hpa, and set each stage's autoscaling" -}}
{{- end -}}
{{- range (include "triptych.components" . | fromJson).components -}}
{{- if .values.extraArgs -}}
{{- fail (printf "extraArgs of %s is set but mode is ray, where Ray starts the processes: use mode standalone" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
