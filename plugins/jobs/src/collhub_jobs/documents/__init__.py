"""The JSON document of a whole job, `collhub/workload-1`."""
