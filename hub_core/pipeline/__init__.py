"""The pipeline from user input to models and results.

Only this package calls plugins' functions.
"""
