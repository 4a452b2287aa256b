-- fragment: columns
tenant, id, code_hmac, checks_left, send_no, created_at, expires_at, used_at, cancelled_at

-- name: insert
INSERT INTO passcodes (tenant, id, code_hmac, checks_left, send_no, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING

-- name: get
SELECT
-- include: columns
  FROM passcodes WHERE tenant = $1 AND id = $2

-- name: take_check
-- -1 stays -1: there was nothing left to take.
UPDATE passcodes SET checks_left = greatest(checks_left - 1, -1) WHERE tenant = $1 AND id = $2
RETURNING
-- include: columns

-- name: mark_used
UPDATE passcodes SET used_at = now() WHERE tenant = $1 AND id = $2 AND used_at IS NULL AND cancelled_at IS NULL AND expires_at > now()

-- name: take_resend
UPDATE passcodes
   SET send_no = CASE WHEN resends ? $3 THEN send_no ELSE send_no + 1 END,
       resends = CASE WHEN resends ? $3 THEN resends ELSE resends || jsonb_build_object($3::text, send_no + 1) END
 WHERE tenant = $1 AND id = $2
RETURNING (resends ->> $3)::int

-- name: cancel
UPDATE passcodes SET cancelled_at = now() WHERE tenant = $1 AND id = $2 AND used_at IS NULL AND cancelled_at IS NULL

-- name: purge
DELETE FROM passcodes WHERE (tenant, id) IN (
    SELECT tenant, id FROM passcodes WHERE created_at < $1 ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)
