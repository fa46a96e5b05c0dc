"""``python -m train dashboard``: hosts and jobs, live, in a browser.

One process serves all viewers of a user. It reads the jobs' folders on this machine. One playbook
follows the hosts, but only while a page is open. Actions (stop, restart, doctor, TensorBoard) are
commands of ``python -m train`` that it starts.
"""
