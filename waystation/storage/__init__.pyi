from waystation.storage.blobs import STORE_VARIABLE, BlobMissing, Blobs, payload_place
from waystation.storage.driver import (
    INLINE_LIMIT,
    OFFLOAD_OVER,
    add_storage,
    encrypting,
    find_blobs,
    find_user_keys_of,
    is_reference,
    list_shortened,
    may_have_reference,
    offloading,
    retrieve_payloads,
    without_storage,
)
from waystation.storage.encryption import (
    ENCRYPTED,
    ENCRYPTION_VARIABLE,
    UNREADABLE,
    USER_KEYS_VARIABLE,
    decrypt_file,
    describe_missing_key,
    encrypt_file,
    find_cipher,
    find_user_keys,
    is_deleted,
)
from waystation.storage.object_files import ObjectFiles
from waystation.storage.owners import KeyDeleted, Owner
from waystation.storage.postgres import PostgresDatabase, is_postgres_url
from waystation.storage.quota_store import MeteredCall, QuotaStore, Reservation, Spending
from waystation.storage.sql_table import Row, SqlTable, Transaction
from waystation.storage.store_ids import StoreIds, list_differences
from waystation.storage.store_places import OWN_SCHEMES, describe_place, is_on_this_machine, load_store, local_path
from waystation.storage.store_probes import find_database_problem, probe, probe_all
from waystation.storage.store_retries import retrying

__all__ = [
    "ENCRYPTED",
    "ENCRYPTION_VARIABLE",
    "INLINE_LIMIT",
    "OFFLOAD_OVER",
    "OWN_SCHEMES",
    "STORE_VARIABLE",
    "UNREADABLE",
    "USER_KEYS_VARIABLE",
    "BlobMissing",
    "Blobs",
    "KeyDeleted",
    "MeteredCall",
    "ObjectFiles",
    "Owner",
    "PostgresDatabase",
    "QuotaStore",
    "Reservation",
    "Row",
    "Spending",
    "SqlTable",
    "StoreIds",
    "Transaction",
    "add_storage",
    "decrypt_file",
    "describe_missing_key",
    "describe_place",
    "encrypt_file",
    "encrypting",
    "find_blobs",
    "find_cipher",
    "find_database_problem",
    "find_user_keys",
    "find_user_keys_of",
    "is_deleted",
    "is_on_this_machine",
    "is_postgres_url",
    "is_reference",
    "list_differences",
    "list_shortened",
    "load_store",
    "local_path",
    "may_have_reference",
    "offloading",
    "payload_place",
    "probe",
    "probe_all",
    "retrieve_payloads",
    "retrying",
    "without_storage",
]
