"""Inputs of SimAI: workload text of AICB as jobs, flows of SimCCL as algorithms."""
