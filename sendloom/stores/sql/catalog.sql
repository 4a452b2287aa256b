-- fragment: tenant
t.tenant, t.name, t.default_zone, t.default_locale, t.default_region, t.email_from, t.email_from_name, t.sms_from,
       t.quiet_start, t.quiet_end, t.settings, t.disabled_at IS NOT NULL AS disabled

-- name: tenant
SELECT
-- include: tenant
  FROM tenants t WHERE t.tenant = $1

-- name: tenants
SELECT
-- include: tenant
  FROM tenants t ORDER BY t.tenant

-- name: put_tenant
INSERT INTO tenants AS t (tenant, name, default_zone, default_locale, default_region, email_from, email_from_name, sms_from,
                          quiet_start, quiet_end, settings, disabled_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, CASE WHEN $12::boolean THEN now() END)
ON CONFLICT (tenant) DO UPDATE
   SET name = excluded.name, default_zone = excluded.default_zone, default_locale = excluded.default_locale,
       default_region = excluded.default_region, email_from = excluded.email_from, email_from_name = excluded.email_from_name,
       sms_from = excluded.sms_from, quiet_start = excluded.quiet_start, quiet_end = excluded.quiet_end, settings = excluded.settings,
       disabled_at = CASE WHEN $12::boolean THEN coalesce(t.disabled_at, now()) END

-- name: key
SELECT k.key_id, k.kind, k.scopes, k.categories, k.secret_hash, k.label, k.expires_at, k.revoked_at,
-- include: tenant
  FROM api_keys k JOIN tenants t USING (tenant) WHERE k.tenant = $1 AND k.key_id = $2

-- name: keys
SELECT k.key_id, k.kind, k.scopes, k.categories, k.secret_hash, k.label, k.expires_at, k.revoked_at,
-- include: tenant
  FROM api_keys k JOIN tenants t USING (tenant) WHERE k.tenant = $1 ORDER BY k.created_at, k.key_id

-- name: add_key
INSERT INTO api_keys (tenant, key_id, secret_hash, kind, scopes, categories, label, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- name: revoke_key
UPDATE api_keys SET revoked_at = now() WHERE tenant = $1 AND key_id = $2 AND revoked_at IS NULL

-- fragment: category
tenant, category, message_class, ladder, ttl_seconds, quiet_hours, consent_required, unknown_policy, priority, caps, over_cap

-- name: category
SELECT
-- include: category
  FROM categories WHERE tenant = $1 AND category = $2

-- name: categories
SELECT
-- include: category
  FROM categories WHERE tenant = $1 ORDER BY category

-- name: put_category
-- The class of a category is fixed: lanes, budgets and consents hang on it.
INSERT INTO categories AS c (tenant, category, message_class, ladder, ttl_seconds, quiet_hours, consent_required, unknown_policy, priority, caps, over_cap)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (tenant, category) DO UPDATE
   SET ladder = excluded.ladder, ttl_seconds = excluded.ttl_seconds, quiet_hours = excluded.quiet_hours,
       consent_required = excluded.consent_required, unknown_policy = excluded.unknown_policy, priority = excluded.priority,
       caps = excluded.caps, over_cap = excluded.over_cap
 WHERE c.message_class = excluded.message_class
RETURNING true

-- name: template_parts
SELECT p.template_id, p.version, p.channel, p.locale, p.subject, p.text, p.html, v.variables, v.default_locale
  FROM templates t
  JOIN template_versions v ON v.tenant = t.tenant AND v.template_id = t.template_id AND v.version = coalesce($3, t.current_version)
  JOIN template_parts p ON p.tenant = v.tenant AND p.template_id = v.template_id AND p.version = v.version
 WHERE t.tenant = $1 AND t.template_id = $2
 ORDER BY p.channel, p.locale

-- name: template_versions
SELECT v.template_id, v.version, v.published_at, coalesce(t.current_version = v.version, false) AS current, v.default_locale, v.variables
  FROM template_versions v JOIN templates t USING (tenant, template_id)
 WHERE v.tenant = $1 AND v.template_id = $2 ORDER BY v.version

-- name: templates
SELECT template_id, current_version FROM templates WHERE tenant = $1 ORDER BY template_id

-- name: lock_template
INSERT INTO templates (tenant, template_id) VALUES ($1, $2) ON CONFLICT (tenant, template_id) DO UPDATE SET template_id = excluded.template_id

-- name: add_version
INSERT INTO template_versions (tenant, template_id, version, variables, default_locale)
SELECT $1, $2, coalesce(max(version), 0) + 1, $3, $4 FROM template_versions WHERE tenant = $1 AND template_id = $2
RETURNING version

-- name: add_parts
INSERT INTO template_parts (tenant, template_id, version, channel, locale, subject, text, html)
SELECT $1, $2, $3, n.channel, n.locale, n.subject, n.text, n.html
  FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) AS n (channel, locale, subject, text, html)

-- name: publish
-- A published version never changes again; publishing an older one makes it current again.
WITH published AS (
    UPDATE template_versions SET published_at = coalesce(published_at, now()) WHERE tenant = $1 AND template_id = $2 AND version = $3 RETURNING version
)
UPDATE templates t SET current_version = p.version FROM published p WHERE t.tenant = $1 AND t.template_id = $2

-- name: killed
SELECT reason FROM kill_switches
 WHERE tenant = $1 AND (scope = 'tenant' OR (scope = 'category' AND name = $2) OR (scope = 'lane' AND name = $3) OR (scope = 'campaign' AND name = $4))
 ORDER BY at LIMIT 1

-- name: kill_switches
SELECT scope, name, reason, by, at FROM kill_switches WHERE tenant = $1 ORDER BY at, scope, name

-- name: switch_on
INSERT INTO kill_switches (tenant, scope, name, reason, by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, scope, name) DO UPDATE SET reason = excluded.reason, by = excluded.by, at = now()

-- name: switch_off
DELETE FROM kill_switches WHERE tenant = $1 AND scope = $2 AND name = $3

-- name: message_class
SELECT message_class FROM categories WHERE tenant = $1 AND category = $2
