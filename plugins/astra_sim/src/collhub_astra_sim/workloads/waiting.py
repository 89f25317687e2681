def waiting_ranks(workload, layout, machine):
    return ()
