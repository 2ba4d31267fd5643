"""What people and programs touch: the command line, plan files, the live view, drawings and reports."""
