-- fragment: facts
-- Everything the gates ask about recipient `l.recipient_id`; $1 tenant, $2 category, $3 with caps. Each part is one look into
-- one index. '*' is "all marketing", so it says something about marketing categories only.
l.recipient_id, r.recipient_id IS NOT NULL AS exists, r.locale, r.zone, r.erased_at IS NOT NULL AS erased,
       e.address_hash AS email_hash, e.sealed AS email_sealed, e.verified_at IS NOT NULL AS email_verified, e.dead_reason AS email_dead,
       (SELECT s.reason FROM suppressions s WHERE s.tenant = $1 AND s.channel = 'email' AND s.address_hash = e.address_hash) AS email_suppressed,
       m.address_hash AS sms_hash, m.sealed AS sms_sealed, m.verified_at IS NOT NULL AS sms_verified, m.dead_reason AS sms_dead,
       (SELECT s.reason FROM suppressions s WHERE s.tenant = $1 AND s.channel = 'sms' AND s.address_hash = m.address_hash) AS sms_suppressed,
       (SELECT array_agg(p.channel) FROM preferences p
         WHERE p.tenant = $1 AND p.recipient_id = r.recipient_id AND p.opted_out
           AND (p.category = $2 OR (p.category = '*' AND (SELECT marketing FROM asked)))) AS opted_out,
       (SELECT array_agg(k.channel) FROM consents k
         WHERE k.tenant = $1 AND k.recipient_id = r.recipient_id AND k.category = $2 AND k.granted) AS consented,
       (SELECT array_agg((d.device_id, d.channel, d.sealed)) FROM devices d
         WHERE d.tenant = $1 AND d.recipient_id = r.recipient_id AND d.disabled_at IS NULL) AS devices,
       CASE WHEN $3::boolean THEN (SELECT array_agg((u.scope, u.local_day)) FROM cap_uses u
         WHERE u.tenant = $1 AND u.recipient_id = r.recipient_id AND u.local_day >= current_date - 8) END AS cap_uses

-- fragment: joins
  LEFT JOIN LATERAL (SELECT * FROM recipients x WHERE x.tenant = $1 AND x.recipient_id = l.recipient_id OFFSET 0) r ON true
  LEFT JOIN LATERAL (SELECT * FROM addresses x WHERE x.tenant = $1 AND x.recipient_id = l.recipient_id AND x.channel = 'email' OFFSET 0) e ON true
  LEFT JOIN LATERAL (SELECT * FROM addresses x WHERE x.tenant = $1 AND x.recipient_id = l.recipient_id AND x.channel = 'sms' OFFSET 0) m ON true

-- fragment: asked
WITH asked AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM categories WHERE tenant = $1 AND category = $2 AND message_class = 'marketing') AS marketing
)

-- name: people
-- include: asked
SELECT
-- include: facts
  FROM unnest($4::text[]) AS l (recipient_id)
-- include: joins

-- name: members
-- include: asked
SELECT l.variables,
-- include: facts
  FROM list_rows l
-- include: joins
 WHERE l.tenant = $1 AND l.version_id = $4 AND l.shard = $5 AND l.page = $6
 ORDER BY l.recipient_id
