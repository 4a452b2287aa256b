-- name: take
-- Counted and judged in one statement; a refused one is not counted, so waiting always helps. Windows start on whole multiples.
INSERT INTO limit_windows AS l (tenant, subject, starts, used)
SELECT $1, $2, date_bin($4::interval, now(), 'epoch'), 1 WHERE $3::int > 0
ON CONFLICT (tenant, subject, starts) DO UPDATE SET used = l.used + 1 WHERE l.used < $3
RETURNING used

-- name: window_end
SELECT date_bin($1::interval, now(), 'epoch') + $1::interval

-- name: used
SELECT coalesce(sum(used), 0)::int FROM limit_windows WHERE tenant = $1 AND subject = $2 AND starts > now() - $3::interval

-- name: purge
DELETE FROM limit_windows WHERE (tenant, subject, starts) IN (
    SELECT tenant, subject, starts FROM limit_windows WHERE starts < $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
