"""Public path of lerobot's training with this loader: ``python -m autoloader.lerobot_train``."""

from autoloader.integrations.lerobot_train import LeRobotRun, main

__all__ = ["LeRobotRun", "main"]

if __name__ == "__main__":
    main()
