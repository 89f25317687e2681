"""Check whether the executor loads a plan and runs it correctly, also in repeated launches."""
