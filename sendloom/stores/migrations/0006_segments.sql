-- Predicates over recipients (docs/adr/0006-segments.md). Updated in place: a campaign carries its own copy of the definition.
CREATE TABLE segments (
    tenant     text NOT NULL REFERENCES tenants,
    segment_id text NOT NULL,
    name       text NOT NULL DEFAULT '',
    definition jsonb NOT NULL,
    version    int NOT NULL DEFAULT 1,     -- counts changes of the definition
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    PRIMARY KEY (tenant, segment_id)
);

-- How far the recipients have been scanned for a version that is written from a segment.
ALTER TABLE list_versions
    ADD COLUMN scanned_to text NOT NULL DEFAULT '',
    ADD COLUMN scanned_all boolean NOT NULL DEFAULT false;
