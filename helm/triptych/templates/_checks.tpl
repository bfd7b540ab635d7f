{{/* Exceptions to checkov's rules, with their reasons; they become annotations of each pod. */}}
{{- define "triptych.justifications" -}}
checkov.io/skip1: CKV_K8S_43=the image is named by tag so that a release can be read; image.digest pins it
checkov.io/skip2: CKV_K8S_15=IfNotPresent keeps replicas of one release on one image and scaling independent of the registry; image.pullPolicy changes it
checkov.io/skip3: CKV_K8S_35=the command reads the API key and the cluster token from the environment, where neither its arguments nor its root file system show them
{{- if and (eq .root.Values.mode "ray") (ne .kind "test") }}
checkov.io/skip8: CKV_K8S_8=KubeRay adds the probes that fit Ray's own processes
checkov.io/skip9: CKV_K8S_9=KubeRay adds the probes that fit Ray's own processes
{{- end }}
{{- if .token }}
checkov.io/skip4: CKV_K8S_38=the token is what it watches EndpointSlices, or scales Ray's pods, with
{{- end }}
{{- if and .rdma .root.Values.rdma.enabled }}
checkov.io/skip5: CKV_K8S_25=IPC_LOCK is what registering memory with an RDMA device takes
{{- if .root.Values.rdma.hostNetwork }}
checkov.io/skip7: CKV_K8S_19=the RDMA devices of these nodes are in the host's network namespace only
{{- end }}
{{- end }}
{{- end -}}
