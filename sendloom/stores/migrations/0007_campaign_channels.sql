-- Where a campaign sends, first tried first: pinned with its audience, whatever its category's ladder becomes. Null before the freeze, and
-- of campaigns frozen before this column was there: those go by the ladder.
ALTER TABLE campaigns ADD COLUMN channels text[];
