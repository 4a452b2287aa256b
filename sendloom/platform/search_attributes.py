"""The search attributes workflows carry. Visible in plain text to anyone with namespace access: ids and enums only."""

from temporalio.common import SearchAttributeKey

TENANT = SearchAttributeKey.for_keyword("SendloomTenant")
KIND = SearchAttributeKey.for_keyword("SendloomKind")
CLASS = SearchAttributeKey.for_keyword("SendloomClass")
CATEGORY = SearchAttributeKey.for_keyword("SendloomCategory")
STATE = SearchAttributeKey.for_keyword("SendloomState")

ALL = (TENANT, KIND, CLASS, CATEGORY, STATE)
"""`sendloom temporal setup` registers exactly these."""
