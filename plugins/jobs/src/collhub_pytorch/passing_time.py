"""Names of nodes that stand for time in which the device of a rank does no work of the job."""

START, HOST, LAUNCH, GAP = "start", "host", "launch", "gap"
PASSING_TIME = (START, HOST, LAUNCH, GAP)
