"""ASTRA-sim's analytical timing model on any topology: inputs, event loop, findings."""
