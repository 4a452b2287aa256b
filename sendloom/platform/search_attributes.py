"""The search attributes workflows carry. Visible in plain text to anyone with namespace access: ids and enums only."""

from temporalio.common import SearchAttributeKey

TENANT = SearchAttributeKey.for_keyword("SendloomTenant")
KIND = SearchAttributeKey.for_keyword("SendloomKind")
CLASS = SearchAttributeKey.for_keyword("SendloomClass")
CATEGORY = SearchAttributeKey.for_keyword("SendloomCategory")
STATE = SearchAttributeKey.for_keyword("SendloomState")

BUILDS = SearchAttributeKey.for_keyword_list("BuildIds")
"""Temporal's own: by which builds of our code a run was worked."""

UNVERSIONED = "unversioned"
"""The build that workers without worker versioning name."""

UNVERSIONED_BUILDS = (UNVERSIONED, f"unversioned:{UNVERSIONED}")
"""What Temporal notes of such a worker after a run's first step. A run that is started with it has nothing to note: that is one of
the two writes to its search index which an open run costs, and each of them takes as long as three steps in its history."""

ALL = (TENANT, KIND, CLASS, CATEGORY, STATE)
"""`sendloom temporal setup` registers exactly these."""
