/** What a reader says of a run: tags, a note, and whether it is put away. Kept in the run's folder. */

import { useEffect, useRef, useState } from 'preact/hooks'

import type { RunInfo } from '../data/types'
import { useSource } from '../state/source'
import { t } from '../text/translate'

interface Props {
  info: RunInfo
  onClose: () => void
  onSaved: () => void
}

export function NotesDialog({ info, onClose, onSaved }: Props) {
  const source = useSource()
  const dialog = useRef<HTMLDialogElement>(null)
  const [tags, setTags] = useState(info.notes.tags.join(', '))
  const [note, setNote] = useState(info.notes.note)
  const [archived, setArchived] = useState(info.notes.archived)
  const [error, setError] = useState('')
  useEffect(() => dialog.current?.showModal(), [])
  const save = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault()
    const named = tags.split(/[,，]/).map((tag) => tag.trim())
    try {
      await source.note(info.run, { tags: named.filter((tag) => tag !== ''), note: note.trim(), archived })
      onSaved()
      onClose()
    } catch (cause) {
      setError((cause as Error).message)
    }
  }
  return (
    <dialog ref={dialog} class="help notes-dialog" aria-label={t('notes')} onClose={onClose}>
      <form class="help-body" onSubmit={save}>
        <h2>{t('edit_notes', { run: `${info.experiment} ${info.name}` })}</h2>
        <label class="notes-field">
          <span>
            {t('tags')} <span class="faint">{t('tags_hint')}</span>
          </span>
          <input value={tags} onInput={(event) => setTags(event.currentTarget.value)} />
        </label>
        <label class="notes-field">
          <span>{t('note')}</span>
          <textarea rows={5} value={note} onInput={(event) => setNote(event.currentTarget.value)} />
        </label>
        <label class="field" title={t('archived_hint')}>
          <input type="checkbox" checked={archived} onChange={(event) => setArchived(event.currentTarget.checked)} /> {t('archived')}
          <span class="faint">{t('archived_hint')}</span>
        </label>
        {error && (
          <p class="error-line" role="alert">
            {error}
          </p>
        )}
        <div class="notes-ways">
          <span class="faint">{t('kept_in')}</span>
          <button type="button" class="end" onClick={onClose}>
            {t('cancel')}
          </button>
          <button type="submit" class="main">
            {t('save')}
          </button>
        </div>
      </form>
    </dialog>
  )
}
