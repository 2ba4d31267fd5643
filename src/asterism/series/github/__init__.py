"""Series on GitHub: the register in a ref of the repository, and the service that keeps issues, state and assignments
in step. It needs the extra ``github``."""
