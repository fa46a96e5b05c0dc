"""What runs on the hosts. Modules here import each other, and nothing of the control node."""
