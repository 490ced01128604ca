"""The status page for operators: what is where, what fails, what is set."""
