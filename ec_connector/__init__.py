"""Moving bulk bytes between processes: pixels, embeddings, KV blocks. Knows nothing of chat.

`connector.EcConnector` is what other packages use, configured by `config.EcConfig`. A producer
publishes into its `store` and answers signed `descriptors`; a consumer's `consumer` acquires a
lease over the exchange (`server`, `peer`, `messages`, `handshake`) and moves the bytes with one
of `transports/`. `store`, `leases`, `offers` and `allocator` are pure; `holder` drives them.
"""
