"""Frame of the programs of experiments: command line, run, cases, tables, verdicts and figures."""
