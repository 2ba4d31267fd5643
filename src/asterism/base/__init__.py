"""Small things that several rooms need: text, durations, YAML, expressions, processes, HTTP."""
