"""Read MSCCLang programs, which means to execute them, in a process of their own."""
