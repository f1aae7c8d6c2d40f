import gc
import os
import sys

from vmpo.cli import main

if __name__ == "__main__":
    code = main()
    if "RANK" in os.environ:
        # One of several learner processes: gloo's threads may outlive the interpreter, call into it and abort the
        # process, after all of its work is done.
        gc.collect()  # What is shared with other processes is given back by its finalisers.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
