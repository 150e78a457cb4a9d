/** Where the tokens went that were sampled in training. */

import type { Outcome } from '../data/types'
import { integer, rate } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'

type Row = { kind: 'trained' | 'masked' | 'dropped'; name: string; count: number }

export function TokenAccount({ balance }: { balance: Outcome['balance'] }) {
  if (balance.sampled === 0) return null
  const rows = rowsOf(balance)
  return (
    <section>
      <h3 title={t('token_account_hint')}>{t('token_account')}</h3>
      <div class="account-bar" aria-hidden="true">
        {rows.map(({ kind, name, count }) => (
          <span key={name} class={`account-${kind}`} style={`flex-grow: ${count}`} />
        ))}
      </div>
      <table class="account">
        <thead>
          <tr>
            <th scope="col">{t('account')}</th>
            <th scope="col">{t('count')}</th>
            <th scope="col">{t('part')}</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ kind, name, count }) => (
            <tr key={name}>
              <th scope="row">
                <span class={`account-key account-${kind}`} aria-hidden="true" /> {name}
              </th>
              <td>{integer(count)}</td>
              <td>{rate(count / balance.sampled)}</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">{term('sampled')}</th>
            <td>{integer(balance.sampled)}</td>
            <td />
          </tr>
        </tfoot>
      </table>
    </section>
  )
}

function rowsOf({ trained, masked, dropped }: Outcome['balance']): Row[] {
  const named = (kind: 'masked' | 'dropped', counts: { [reason: string]: number }): Row[] =>
    Object.entries(counts).map(([reason, count]) => ({ kind, name: `${term(kind)}: ${term(reason)}`, count }))
  return [{ kind: 'trained', name: term('trained'), count: trained }, ...named('masked', masked), ...named('dropped', dropped)]
}
