"""Diagnose hung jobs by the evidence that their ranks wrote: Flight Recorder dumps."""
