"""Requests to the Compute Engine API for this collection's modules, with errors that name a remedy.

The session, and the options for credentials, are those of the collection ``google.cloud``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ansible_collections.google.cloud.plugins.module_utils.gcp_utils import GcpSession

try:
    from google.auth.exceptions import (
        DefaultCredentialsError,
        GoogleAuthError,
        RefreshError,
        TransportError,
    )
    from requests.exceptions import RequestException
except ImportError:  # GcpSession reports it
    DefaultCredentialsError = GoogleAuthError = RefreshError = TransportError = OSError
    RequestException = OSError

ENDPOINT = "https://compute.googleapis.com/compute/v1/projects"
SCOPE = "https://www.googleapis.com/auth/compute"
#: Seconds without an answer after which a request has failed.
TIMEOUT_S = 60


class Compute:
    """The Compute Engine API for the project of a module.

    Args:
        module: the Ansible module, with the options of ``google.cloud`` for its project and
            credentials.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        if not module.params["scopes"]:
            module.params["scopes"] = [SCOPE]
        self._project = module.params["project"]
        try:
            self._session = GcpSession(module, "compute").session()
        except DefaultCredentialsError as error:
            self._fail(
                "There are no usable Google Cloud credentials: run `gcloud auth "
                "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the key "
                f"file of a service account ({error})"
            )
        except (GoogleAuthError, ValueError) as error:
            self._fail(
                f"The file is not a valid key file of a service account ({error}): create a key "
                "with `gcloud iam service-accounts keys create`"
            )

    def get(self, path: str, **params: str) -> dict[str, Any] | None:
        """Return the answer to a GET request for ``path`` in the project.

        Return None if the path does not exist. Fail the module with a remedy if the request is
        rejected.
        """
        try:
            response = self._session.get(
                f"{ENDPOINT}/{self._project}/{path}", params=params, timeout=TIMEOUT_S
            )
        except RefreshError as error:
            self._fail(
                f"Google rejects the credentials ({_first(error)}): check that the key was not "
                "deleted or disabled and that the clock of this machine is right, or log in again "
                "with `gcloud auth application-default login`"
            )
        except (RequestException, TransportError) as error:
            self._fail(
                f"The Compute Engine API cannot be reached ({_first(error)}): check the network "
                "and HTTPS_PROXY"
            )
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        if not isinstance(answer, dict):
            answer = {}
        if response.status_code == 200:
            return answer
        self._check(response.status_code, answer)
        return None

    def list(self, path: str, query: str) -> list[dict[str, Any]]:
        """Return all pages of a list; fail the module if the project does not exist."""
        pages: list[dict[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            page = self.get(path, **({"filter": query} if query else {}), **token)
            if page is None:
                self._fail(
                    f"There is no Google Cloud project {self._project}, or the credentials have no "
                    "access to it: set gcp_instances_project to one of `gcloud projects list`"
                )
            pages.append(page)
            if not page.get("nextPageToken"):
                return pages
            token = {"pageToken": page["nextPageToken"]}

    def _check(self, status: int, answer: dict[str, Any]) -> None:
        """Fail the module with a remedy, unless the HTTP status is 404."""
        error = answer.get("error")
        error = error if isinstance(error, dict) else {}
        message = str(error.get("message", f"HTTP status {status}"))
        reasons = {str(one.get("reason")) for one in error.get("errors", []) if "reason" in one}
        if status == 404:
            return
        if reasons & {"accessNotConfigured", "SERVICE_DISABLED"}:
            remedy = "enable the API: gcloud services enable compute.googleapis.com"
        elif status == 401:
            remedy = "log in again with `gcloud auth application-default login`"
        elif status == 403 and reasons & {"rateLimitExceeded", "quotaExceeded"}:
            remedy = "too many requests were made: run again in a minute"
        elif status == 403:
            remedy = (
                "the credentials need the role roles/compute.admin (or compute.instanceAdmin.v1 "
                f"and compute.securityAdmin) in the project {self._project}"
            )
        elif status == 400:
            remedy = "check gcp_instances_project and gcp_instances_cluster"
        else:
            remedy = "run again later"
        self._fail(f"Google Cloud rejects the request ({message}): {remedy}")

    def _fail(self, message: str) -> NoReturn:
        self._module.fail_json(msg=f"{message}.")
        raise AssertionError  # fail_json does not return


def _first(error: BaseException) -> str:
    """Return the text of an error without its details, which may contain a whole answer."""
    return str(error.args[0] if error.args else error)[:300]
