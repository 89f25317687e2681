"""Conversion of an algorithm to its levelled program, which every executor and emitter runs."""
