"""Public path of lerobot's training with this loader: ``python -m autoloader.lerobot_train``."""

import sys

from autoloader.errors import AutoloaderError
from autoloader.integrations.lerobot_train import LeRobotRun, main

__all__ = ["LeRobotRun", "main"]

if __name__ == "__main__":
    try:
        main()
    except AutoloaderError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
