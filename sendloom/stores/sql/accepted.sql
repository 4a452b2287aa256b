-- fragment: columns
tenant, id, mode, kind, idempotency_key, body_hmac, message_class, category, recipient_id, correlation_id, parent_id,
       workflow_input, content, accepted_at, due_at, expires_at, started_at, closed_at, outcome

-- name: insert
-- Without a target, so that every unique index decides: one that is not named raises when two come at once.
INSERT INTO accepted (tenant, id, mode, kind, idempotency_key, body_hmac, message_class, category, recipient_id, correlation_id,
                      parent_id, workflow_input, content, accepted_at, due_at, expires_at, started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
ON CONFLICT DO NOTHING
RETURNING true

-- name: get
SELECT
-- include: columns
  FROM accepted WHERE tenant = $1 AND id = $2

-- name: mark_started
UPDATE accepted SET started_at = now() WHERE tenant = $1 AND id = $2 AND started_at IS NULL

-- name: close
-- The first outcome stays; but what turns out to have been sent was sent.
UPDATE accepted SET closed_at = coalesce(closed_at, now()), outcome = $3::jsonb
 WHERE tenant = $1 AND id = $2
   AND (closed_at IS NULL OR ($3::jsonb ->> 'kind' = 'accepted' AND outcome ->> 'kind' IS DISTINCT FROM 'accepted'))

-- name: set_due
UPDATE accepted SET due_at = $3 WHERE tenant = $1 AND id = $2 AND closed_at IS NULL

-- name: by_recipient
SELECT
-- include: columns
  FROM accepted
 WHERE person(tenant, recipient_id) = person($1, $2) AND ($4::timestamptz IS NULL OR accepted_at < $4)
 ORDER BY accepted_at DESC LIMIT $3

-- name: by_correlation
SELECT
-- include: columns
  FROM (SELECT * FROM accepted WHERE correlation_id = $2 OFFSET 0) a WHERE tenant = $1 ORDER BY accepted_at, id

-- name: unstarted
SELECT
-- include: columns
  FROM accepted
 WHERE started_at IS NULL AND closed_at IS NULL AND accepted_at < now() - $1::interval
 ORDER BY accepted_at LIMIT $2

-- name: open_rows
SELECT
-- include: columns
  FROM accepted WHERE closed_at IS NULL AND (tenant, id) > ($1, $2) ORDER BY tenant, id LIMIT $3

-- name: purge
DELETE FROM accepted WHERE (tenant, id) IN (
    SELECT tenant, id FROM accepted WHERE closed_at < $1 ORDER BY closed_at LIMIT $2 FOR UPDATE SKIP LOCKED)

-- name: oldest_waiting_security
-- Accepted, and neither decided against nor claimed for a call: what a lane that falls behind leaves waiting. Only the newest
-- are looked at, so that open passcodes and one message that hangs cost nothing and hold nobody up; a lane that is behind is
-- behind with those too. A message is due when it is accepted, unless it is a reminder.
SELECT max(now() - r.accepted_at) AS age
  FROM (SELECT tenant, id, recipient_id, accepted_at FROM accepted
         WHERE message_class = 'security' AND closed_at IS NULL AND due_at IS NULL
           AND accepted_at < now() - $2::interval
           AND accepted_at > now() - interval '2 minutes'
         ORDER BY accepted_at DESC LIMIT $1) r
 WHERE NOT EXISTS (SELECT FROM claims c
                    WHERE c.campaign_id = r.id AND c.tenant = r.tenant AND c.frozen_at = r.accepted_at)
   AND NOT EXISTS (SELECT FROM decisions d
                    WHERE d.campaign_id = r.id AND d.tenant = r.tenant AND d.frozen_at = r.accepted_at AND d.state <> 0)

-- name: waiting_security
-- The same when claims are elsewhere: the oldest first, for the caller to ask the ledger about.
SELECT r.tenant, r.id, r.accepted_at, now() - r.accepted_at AS age
  FROM (SELECT tenant, id, recipient_id, accepted_at FROM accepted
         WHERE message_class = 'security' AND closed_at IS NULL AND due_at IS NULL
           AND accepted_at < now() - $2::interval
           AND accepted_at > now() - interval '2 minutes'
         ORDER BY accepted_at DESC LIMIT $1) r
 WHERE NOT EXISTS (SELECT FROM decisions d
                    WHERE d.campaign_id = r.id AND d.tenant = r.tenant AND d.frozen_at = r.accepted_at AND d.state <> 0)
 ORDER BY r.accepted_at

-- name: forget_secrets
-- A passcode's code, in the row and in what was sent. The row stays: its idempotency key must hold for longer.
WITH old AS (
    SELECT tenant, id, accepted_at FROM accepted
     WHERE kind = 'passcode' AND content <> '' AND accepted_at < $1
     ORDER BY accepted_at LIMIT $2 FOR UPDATE SKIP LOCKED
), payloads AS (
    UPDATE deliveries d SET payload = NULL FROM old
     WHERE d.tenant = old.tenant AND d.frozen_at = old.accepted_at AND d.campaign_id = old.id
)
UPDATE accepted a SET content = '' FROM old WHERE a.tenant = old.tenant AND a.id = old.id
