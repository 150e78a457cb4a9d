/** What stands where there is nothing to show: it is loading, there is none, or it failed. */

import { SourceError } from '../data/source'
import { t } from '../text/translate'

export function Loading() {
  return (
    <div class="notice" role="status">
      <span class="spinner" aria-hidden="true" />
      {t('loading')}
    </div>
  )
}

export function Empty({ title, hint }: { title: string; hint?: string }) {
  return (
    <div class="notice" role="status">
      <strong>{title}</strong>
      {hint && <span>{hint}</span>}
    </div>
  )
}

export function Failure({ error, again }: { error: Error; again: () => void }) {
  return (
    <div class="notice failure" role="alert">
      <strong>{error.message}</strong>
      {error instanceof SourceError && error.hint && <span>{error.hint}</span>}
      <button onClick={again}>{t('again')}</button>
    </div>
  )
}
