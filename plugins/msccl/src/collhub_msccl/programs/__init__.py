"""Read MSCCLang programs by executing them in a separate process."""
