"""The templates that Ansible renders for each host of a gang."""

from __future__ import annotations

from train.gang import role_templates


def test_templates_of_tasks_for_each_host_are_found_with_those_that_they_mention() -> None:
    found = role_templates.of_each_host()
    assert "{{ __train_job_stage_host.root }}" in found, "what a rank gets"
    assert "{{ train_job_address }}" in found, "of the check of each host"
    assert "{{ ansible_host | default(inventory_hostname) }}" in found, "its default"
    assert "{{ groups['evaluator'] | default([]) }}" in found, "in a dictionary of the playbooks"


def test_templates_of_tasks_that_run_once_are_not_found() -> None:
    found = role_templates.of_each_host()
    assert "{{ train_job_code_limit_mb }}" not in found
    assert not [text for text in found if "tf_config.json.j2" in text]
