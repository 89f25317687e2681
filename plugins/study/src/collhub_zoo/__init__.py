"""The zoo: a catalogue of algorithms as data, and its build with verdicts, bounds and times."""
