"""``python -m asterism``: the command line."""

import os
import sys

# Python has put the working directory first, where each file would stand in for a module of the same name. Commands
# that execute what is there put it last (cli/editor_options.py).
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

from asterism.base.startup import collect_rarely

collect_rarely()  # before most of the imports

from asterism.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
