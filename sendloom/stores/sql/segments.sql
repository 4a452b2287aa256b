-- name: put
-- A definition that is the same makes no new version.
INSERT INTO segments AS s (tenant, segment_id, name, definition, created_by, updated_by) VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (tenant, segment_id) DO UPDATE
   SET name = excluded.name, definition = excluded.definition, updated_at = now(), updated_by = excluded.updated_by,
       version = s.version + CASE WHEN s.definition = excluded.definition THEN 0 ELSE 1 END
 WHERE s.definition <> excluded.definition OR s.name <> excluded.name

-- fragment: segment
segment_id, name, definition, version, created_at, created_by, updated_at, updated_by

-- name: get
SELECT
-- include: segment
  FROM segments WHERE tenant = $1 AND segment_id = $2

-- name: page
SELECT
-- include: segment
  FROM segments WHERE tenant = $1 AND segment_id > $2 ORDER BY segment_id LIMIT $3

-- name: delete
DELETE FROM segments WHERE tenant = $1 AND segment_id = $2

-- name: look
-- Of the next $3 recipients in key order: the last one, how many there were, how many are in it, and the first $4 of those.
WITH scanned AS MATERIALIZED (
    SELECT recipient_id, locale, zone, attributes, erased_at FROM recipients
     WHERE tenant = $1 AND recipient_id > $2 ORDER BY recipient_id LIMIT $3),
members AS MATERIALIZED (
    SELECT r.recipient_id FROM scanned r WHERE r.erased_at IS NULL AND true /* the segment */)
SELECT (SELECT max(recipient_id) FROM scanned) AS last, (SELECT count(*) FROM scanned) AS scanned, (SELECT count(*) FROM members) AS members,
       ARRAY(SELECT recipient_id FROM members ORDER BY recipient_id LIMIT $4) AS first
