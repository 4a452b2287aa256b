-- fragment: columns
d.tenant, d.frozen_at, d.campaign_id, d.shard, d.page, d.recipient_id, d.state, d.channel, d.rung, d.send_no, d.attempt, d.reason,
       d.not_before, d.not_after, d.due_at

-- fragment: inserted
-- What is the same in every row comes once ($16 to $22).
INSERT INTO decisions (tenant, frozen_at, campaign_id, shard, page, recipient_id, state, channel, rung, send_no, attempt, reason,
                       not_before, not_after, due_at)
SELECT $1, $2::timestamptz, $3, $4, $5, n.recipient_id, coalesce(n.state, $16::smallint), coalesce(n.channel, $17), coalesce(n.rung, $18, 0),
       coalesce(n.send_no, 1), coalesce(n.attempt, 0), coalesce(n.reason, $19), coalesce(n.not_before, $20), coalesce(n.not_after, $21),
       coalesce(n.due_at, $22)
  FROM unnest(string_to_array($6, E'\x1f'), $7::smallint[], $8::text[], $9::smallint[], $10::smallint[], $11::smallint[], $12::text[],
              $13::timestamptz[], $14::timestamptz[], $15::timestamptz[])
    AS n (recipient_id, state, channel, rung, send_no, attempt, reason, not_before, not_after, due_at)

-- name: insert_all
-- All or nothing: one that is there already fails the statement. A page nearly always is new from end to end, and an insert
-- without ON CONFLICT costs half of one with it.
-- include: inserted

-- name: insert
-- Which of them were not there; nothing when all were not.
WITH new AS (
-- include: inserted
ON CONFLICT DO NOTHING
RETURNING recipient_id
)
SELECT CASE WHEN count(*) < cardinality(string_to_array($6, E'\x1f')) THEN coalesce(array_agg(recipient_id), '{}') END FROM new

-- name: insert_with_deliveries
-- A single notification's decision and its payload, in one statement and so in one transaction.
WITH fixed AS (
-- include: delivered
ON CONFLICT DO NOTHING
), new AS (
-- include: inserted
ON CONFLICT DO NOTHING
RETURNING recipient_id
)
SELECT CASE WHEN count(*) < cardinality(string_to_array($6, E'\x1f')) THEN coalesce(array_agg(recipient_id), '{}') END FROM new

-- name: of_page
SELECT
-- include: columns
  FROM decisions d
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4 AND d.page = $5 AND d.recipient_id = ANY (string_to_array($6, E'\x1f'))

-- name: read
SELECT
-- include: columns
  FROM decisions d
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4 AND d.page = $5 AND d.recipient_id = $6

-- name: by_recipient
SELECT
-- include: columns
  FROM decisions d WHERE person(d.tenant, d.recipient_id) = person($1, $2) ORDER BY d.frozen_at DESC LIMIT $3

-- fragment: moved
-- What is the same in every row comes once ($17 to $23).
UPDATE decisions d
   SET state = coalesce(m.new_state, $18::smallint), reason = coalesce(m.reason, $19, d.reason), channel = coalesce(m.channel, $20, d.channel),
       rung = coalesce(m.rung, $21, d.rung), send_no = coalesce(m.send_no, d.send_no), attempt = coalesce(m.attempt, $22, d.attempt),
       not_before = coalesce(m.not_before, d.not_before), not_after = coalesce(m.not_after, d.not_after), due_at = coalesce(m.due_at, $23),
       changed_at = now()
  FROM unnest(string_to_array($6, E'\x1f'), $7::int[], $8::smallint[], $9::text[], $10::text[], $11::smallint[], $12::smallint[], $13::smallint[],
              $14::timestamptz[], $15::timestamptz[], $16::timestamptz[])
    AS m (recipient_id, expect, new_state, reason, channel, rung, send_no, attempt, not_before, not_after, due_at)
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4 AND d.page = $5
   AND d.recipient_id = ANY (string_to_array($6, E'\x1f')) AND d.recipient_id = m.recipient_id AND (coalesce(m.expect, $17::int) >> d.state) & 1 = 1

-- name: move
-- include: moved

-- name: move_page
-- The same for all of them, as most of a campaign's moves are.
UPDATE decisions d
   SET state = $8::smallint, reason = coalesce($9, d.reason), channel = coalesce($10, d.channel), rung = coalesce($11::smallint, d.rung),
       attempt = coalesce($12::smallint, d.attempt), due_at = $13, changed_at = now()
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4 AND d.page = $5
   AND d.recipient_id = ANY (string_to_array($6, E'\x1f')) AND ($7::int >> d.state) & 1 = 1

-- name: move_and_give_back
-- Whoever is not sent to has not used up a cap.
WITH moved AS (
-- include: moved
 RETURNING d.recipient_id, d.state
), given_back AS (
    DELETE FROM cap_uses u USING moved m
     WHERE u.tenant = $1 AND u.recipient_id = ANY (string_to_array($6, E'\x1f')) AND u.recipient_id = m.recipient_id AND u.decision_id = $3 AND m.state = ANY ($24::smallint[])
)
SELECT count(*) FROM moved

-- name: lock_people
-- In one order, so that two pages with people in common cannot wait for each other.
SELECT recipient_id FROM recipients WHERE tenant = $1 AND recipient_id = ANY ($2::text[]) ORDER BY recipient_id FOR NO KEY UPDATE

-- name: full_caps
-- Uses by this very decision do not count against it: a repeat changes nothing.
SELECT w.n
  FROM unnest($3::int[], $4::text[], $5::text[], $6::date[], $7::int[], $8::int[]) AS w (n, recipient_id, scope, local_day, limit_day, limit_week)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE u.local_day = w.local_day) AS today, count(*) AS week
         FROM cap_uses u
        WHERE u.tenant = $1 AND u.recipient_id = w.recipient_id AND u.scope = w.scope AND u.decision_id <> $2
          AND u.local_day >= date_trunc('week', w.local_day)::date AND u.local_day < date_trunc('week', w.local_day)::date + 7) used
 WHERE used.today >= w.limit_day OR used.week >= w.limit_week

-- name: use_caps
INSERT INTO cap_uses (tenant, recipient_id, scope, local_day, decision_id)
SELECT $1, w.recipient_id, w.scope, w.local_day, $2 FROM unnest($3::text[], $4::text[], $5::date[]) AS w (recipient_id, scope, local_day)
ON CONFLICT DO NOTHING

-- fragment: delivered
INSERT INTO deliveries (tenant, frozen_at, campaign_id, recipient_id, channel, send_no, device, address_hash, payload)
SELECT w.tenant, w.frozen_at, w.campaign_id, w.recipient_id, w.channel, w.send_no, w.device, w.address_hash, w.payload
  FROM unnest($23::text[], $24::timestamptz[], $25::uuid[], $26::text[], $27::text[], $28::smallint[], $29::text[], $30::bytea[], $31::bytea[])
    AS w (tenant, frozen_at, campaign_id, recipient_id, channel, send_no, device, address_hash, payload)

-- name: insert_deliveries
INSERT INTO deliveries (tenant, frozen_at, campaign_id, recipient_id, channel, send_no, device, address_hash, payload)
SELECT w.tenant, w.frozen_at, w.campaign_id, w.recipient_id, w.channel, w.send_no, w.device, w.address_hash, w.payload
  FROM unnest($1::text[], $2::timestamptz[], $3::uuid[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::bytea[], $9::bytea[])
    AS w (tenant, frozen_at, campaign_id, recipient_id, channel, send_no, device, address_hash, payload)
ON CONFLICT DO NOTHING

-- name: delivery
SELECT address_hash, payload FROM deliveries
 WHERE tenant = $1 AND frozen_at = $2 AND campaign_id = $3 AND recipient_id = $4 AND channel = $5 AND send_no = $6 AND device = $7
